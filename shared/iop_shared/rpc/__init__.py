"""gRPC over HTTP/2 for the few calls that an edge serves and a node makes.

On the wire it is gRPC, and any gRPC client or server can be the other end. `h2` keeps a
connection's state: settings, headers, streams that open and end. What a running session sends
again and again, DATA and WINDOW_UPDATE frames, is read and written here, since a message that
passes through a general library costs several times what the message's own work does.

  codes       statuses, errors, and what gRPC writes into headers and trailers
  frames      HTTP/2 frames out of bytes
  messages    gRPC messages out of the content of DATA frames
  patience    how much a peer may send that carries nothing
  rules       h2's part, bounded where h2 is not
  stalls      peers that take nothing of what waits for them
  stream      one call: messages in, messages out, within the peer's windows
  connection  one connection: frames to streams and to h2
  client      dialling, and the one call of a connection that a node needs
  server      listening, calls to handlers, and what a peer may not do
"""

"""The bootstrap room: what a fresh machine needs to become a node, and the line that fetches it."""

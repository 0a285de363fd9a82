"""What both ends must agree on: ids, errors, profiles, the session, the wire, lifecycle, logs."""

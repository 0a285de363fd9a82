"""The HTTP room: one listener and one router for the ingress, the admin surface and the metrics."""

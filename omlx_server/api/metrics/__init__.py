"""What the server tells of itself for Prometheus and OpenTelemetry."""

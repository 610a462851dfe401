"""The push protocols of log shippers: Loki's and OpenTelemetry's."""

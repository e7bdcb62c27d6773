"""What the routes take and give, as an OpenAPI document."""

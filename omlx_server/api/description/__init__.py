"""The OpenAPI document, made from what the routes' decorators say."""

"""The OpenAPI document: what each route takes and answers."""

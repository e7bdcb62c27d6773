"""Who may send requests (host, origin, API key), and for which tenant a request runs."""

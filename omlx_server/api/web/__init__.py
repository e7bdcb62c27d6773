"""The files of the server's page, and the options it asks for first."""

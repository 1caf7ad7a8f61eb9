"""What the server runs."""

from fedfew.flower import server_app

app = server_app()

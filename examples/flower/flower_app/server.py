"""What the server runs, configured in pyproject.toml."""

from fedfew.flower import server_app

app = server_app()  # server_app(make) for a model of your own, the same as the sites'

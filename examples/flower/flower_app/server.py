"""What the server runs, as the configuration in pyproject.toml says."""

from fedfew.flower import server_app

app = server_app()  # server_app(make) for a model of your own, the same as the sites'

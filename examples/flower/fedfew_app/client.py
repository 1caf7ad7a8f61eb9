"""What every site runs. Its data and its number come from ``flower-supernode --node-config``."""

from fedfew.flower import client_app

app = client_app()

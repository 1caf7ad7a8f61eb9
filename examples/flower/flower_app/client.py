"""What every site runs. Its client number and data are set by ``flower-supernode --node-config``."""

from fedfew.flower import client_app

app = client_app()  # client_app(make) for a model of your own; make() returns an nn.Module that gives logits

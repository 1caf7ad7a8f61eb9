"""The ClientApp: Flower's messages in, a site's replies out."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfew.flower import audit_log, records, site_errors
from fedfew.flower.messages import FAILED, SiteMessage
from fedfew.flower.site import Site
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import SiteError, fails_as
from fedfew.flower.site_task import Model


def client_app(model: Model | None = None) -> ClientApp:
    """The app that every site runs.

    model: a function that makes your own ``nn.Module``; unless given, the run's configuration names one (``model = "mlp"``).
    """
    app = ClientApp()

    def reply(flower_message: Message, context: Context) -> Message:
        return Message(records.to_records(handle(flower_message, context, model)), reply_to=flower_message)

    app.query()(reply)
    app.train()(reply)
    app.evaluate()(reply)
    return app


def handle(flower_message: Message, context: Context, model: Model | None = None) -> SiteMessage:
    """A site's reply to a message, written to the audit log first. Of a failure the reply holds the category alone."""
    folder = Path.cwd() / "fedfew-site"  # where errors are logged until the configuration is read
    try:
        with fails_as("configuration"):
            config = SiteConfig.read(context.node_config, context.run_config)
            site = Site(config, model if model is not None else _named_model(str(context.run_config.get("model", "mlp"))))
            folder = site.folder
        with fails_as("request"):
            message = records.from_records(flower_message.content)
        reply = site.handle(message)
        with fails_as("state"):
            audit_log.append(folder, reply)
        return reply
    except (Exception, SystemExit) as error:
        site_errors.append(folder, error)
        reply = SiteMessage(FAILED, {"error": error.category if isinstance(error, SiteError) else "request"})
        try:
            audit_log.append(folder, reply)
        except OSError as unwritable:
            site_errors.append(folder, unwritable)
        return reply


def _named_model(name: str) -> Model:
    from fedfew.training.from_settings import find_model

    return find_model(name)

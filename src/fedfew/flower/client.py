"""The ClientApp: Flower's messages in, a site's answers out."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfew.flower import audit_log, records, site_errors
from fedfew.flower.messages import FAILED, Letter
from fedfew.flower.site import Model, Site
from fedfew.flower.site_data import SiteConfig
from fedfew.flower.site_errors import TroubleError, failing_as


def client_app(model: Model | None = None) -> ClientApp:
    """The app that every site runs.

    model: a function that makes your own ``nn.Module``; unless given, the run's configuration names one (``model = "mlp"``).
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(records.to_records(answered(message, context, model)), reply_to=message)

    app.query()(answer)
    app.train()(answer)
    app.evaluate()(answer)
    return app


def answered(message: Message, context: Context, model: Model | None = None) -> Letter:
    """A site's answer to a message, written down before it leaves. Of a failure only one word does."""
    folder = Path.cwd() / "fedfew-site"  # until the configuration has told a better one
    try:
        with failing_as("configuration"):
            config = SiteConfig.read(context.node_config, context.run_config)
            named = model if model is not None else _named_model(str(context.run_config.get("model", "mlp")))
            site = Site(config, named)
            folder = site.folder
        with failing_as("request"):
            letter = records.to_letter(message.content)
        reply = site.answer(letter)
        with failing_as("state"):
            audit_log.note(folder, reply)
        return reply
    except (Exception, SystemExit) as error:
        site_errors.note(folder, error)
        word = error.word if isinstance(error, TroubleError) else "request"
        reply = Letter(FAILED, {"why": word})
        try:
            audit_log.note(folder, reply)
        except OSError as unwritable:
            site_errors.note(folder, unwritable)
        return reply


def _named_model(name: str) -> Model:
    from fedfew.training.settings import find_model

    return find_model(name)

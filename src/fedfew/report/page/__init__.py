"""One self-contained page about a run or a study: ``fedfew report``, and ``fedfew watch`` while a run goes on.

``record.py`` reads a run, ``document.py`` makes of it one JSON document, small however many clients and rounds there are, and
``html.py`` puts it into the template with our own style and script (``assets/``). Nothing is loaded from anywhere else.
"""

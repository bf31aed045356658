"""The demo pair's text: markup taken off, and openings for the target that are the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_eagle.demo.answers import openings
from llama_eagle.demo.corpus import Document, clean, read_documents

SOURCE = """\
.. _topics-signals:

=======
Signals
=======

.. module:: django.dispatch
   :synopsis: Signal dispatch

Django has a :class:`~django.dispatch.Signal` class for events, see
`the guide <https://example.org>`_; it is ``fast``.

Listening
=========

.. note::

    Receivers are references.

.. code-block:: python

    signal.connect(receiver)
"""


def test_markup_is_taken_off() -> None:
    signals, listening = clean(SOURCE)
    assert signals.title == "Signals"
    assert signals.paragraphs == ("Django has a `Signal` class for events, see the guide; it is `fast`.",)
    assert listening.paragraphs == ("Note:", "    Receivers are references.", "    signal.connect(receiver)")


def test_openings_are_the_same_every_time_and_from_the_documents() -> None:
    documents = [Document("topics/signals.txt", tuple(clean(SOURCE)))]
    found = list(openings(documents, 200))
    assert found == list(openings(documents, 200)) != list(openings(documents, 200, seed=1))
    assert {opening.is_question for opening in found} == {True, False}
    words = set(documents[0].text.split())
    assert all(words & set(opening.text.split()) for opening in found if not opening.is_question)


def test_another_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "django.tar.gz").write_bytes(b"another release")
    with pytest.raises(ValueError, match="sha256"):
        read_documents(tmp_path / "django.tar.gz")

"""YAML files of other people: read at once or refused, whatever is in them."""

from __future__ import annotations

from typing import Any

LONGEST = 1_000_000  # characters
MOST_VALUES = 100_000  # names and values in a document, aliases written out
DEEPEST = 100  # brackets within brackets: PyYAML's time grows with the square of the depth


class YAMLError(ValueError):
    """A text is not YAML that can be read; why."""


def load(text: str) -> Any:
    """The contents of a YAML text. A name that is there twice is an error: one of its values would be lost without a word."""
    import yaml

    if len(text) > LONGEST:
        raise YAMLError(f"it has {len(text):,} characters, and at most {LONGEST:,} are read")
    loader = _loader_class()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {}, set())
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # of a number too long to convert, or of a date
        raise YAMLError(" ".join(str(error).split())) from None
    except RecursionError:
        raise YAMLError("it is nested too deeply") from None
    finally:
        loader.dispose()


def _count(node: Any, known: dict[int, int], within: set[int]) -> int:
    """Values in a node with its aliases written out: a few lines of aliases to aliases stand for billions."""
    import yaml

    if id(node) in within:
        raise yaml.MarkedYAMLError(problem="an alias stands within its own anchor", problem_mark=node.start_mark)
    if id(node) not in known:
        children: list[Any] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        within.add(id(node))
        known[id(node)] = 1 + sum(_count(child, known, within) for child in children)
        within.remove(id(node))
        if known[id(node)] > MOST_VALUES:
            problem = f"with its aliases written out it has more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return known[id(node)]


def _loader_class() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def fetch_flow_collection_start(self, kind: Any) -> None:
            if self.flow_level >= DEEPEST:
                raise RecursionError
            super().fetch_flow_collection_start(kind)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                name = str(key.value)
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"{name!r} is there twice", problem_mark=key.start_mark)
                seen.add(name)
            return super().construct_mapping(node, deep)

    return Loader

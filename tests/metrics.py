"""What a test reads on a page of metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Page:
    """A page, parsed by the library's own reader of the format.

    :ivar text: as it came.
    :ivar samples: every value, by ``name`` or ``name{label="value"}``; without what the kernel says of the process.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                if not sample.name.startswith("process_"):
                    self.samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value

    def since(self, before: Page) -> dict[str, float]:
        """By how much each value changed, if it did; without the buckets and sums of histograms."""
        return {
            name: value - before.samples[name]
            for name, value in self.samples.items()
            if value != before.samples[name] and "_bucket" not in name and not name.endswith("_sum")
        }


def page_of(registry: CollectorRegistry) -> Page:
    """The page of a registry, as it is now."""
    return Page(generate_latest(registry).decode())

"""What a run came to, on one offline page."""

from __future__ import annotations

from equipoise.report.folder import read_run, standing
from equipoise.report.lacking import gaps
from equipoise.report.page import Sheet, standalone, write_comparison, write_report

__all__ = ["Sheet", "gaps", "read_run", "standalone", "standing", "write_comparison", "write_report"]

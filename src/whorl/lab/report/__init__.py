"""The report of a comparison: a page for people, JSON and CSV for programs."""

from whorl.lab.report.files import write_csv, write_json, write_report

__all__ = ["write_csv", "write_json", "write_report"]

"""The papers in plain loops: what whorl is measured against. Nothing here may import whorl or torch."""

"""A library of three hundred skills: some that are looked for, and many that are like them."""

from __future__ import annotations

import itertools

from tallystick.skills.format.manifest import Card

__all__ = ["library"]

_WRITTEN = {
    "pdf-forms": "Fill in PDF forms and flatten them. Reads field names from the document first.",
    "pdf-tables": "Extract tables from PDF documents as CSV, including those that span pages.",
    "csv-cleaning": "Repair messy CSV files: mixed date formats, stray quotes, duplicate rows.",
    "invoice-check": "Check supplier invoices against purchase orders and list what differs.",
    "expense-report": "Turn receipts into an expense report with totals per category and currency.",
    "sql-tuning": "Find slow SQL queries and propose indexes. Explains the query plan.",
    "schema-migration": "Write database migrations that can be rolled back, one table at a time.",
    "release-notes": "Write release notes and a changelog from merged pull requests.",
    "code-review": "Review a change for bugs, missing tests and unclear names.",
    "commit-messages": "Write commit messages in the house style.",
    "incident-report": "Write a postmortem of an outage: timeline, causes, what is done about it.",
    "meeting-minutes": "Summarize a meeting transcript into decisions and action items.",
    "email-reply": "Draft a polite reply to an email from a customer.",
    "press-release": "Write a press release about a product launch.",
    "brand-guidelines": "Colours, fonts and logo of the brand, for anything that is published.",
    "slide-deck": "Build a PowerPoint presentation from an outline, with speaker notes.",
    "spreadsheet-model": "Build an Excel workbook with formulas for a forecast or a budget.",
    "word-document": "Create and edit Word files, with tracked changes and comments.",
    "image-resize": "Resize, crop and convert pictures: PNG, JPEG, WebP.",
    "ocr-scans": "Read text from scanned pages and photographs.",
    "audio-transcript": "Transcribe speech from recordings, with speakers and time stamps.",
    "video-subtitles": "Make subtitles for a film and translate them.",
    "translation-memory": "Translate text with the approved terms of each language.",
    "tone-of-voice": "Rewrite text so that it sounds like us: short, warm, without jargon.",
    "sentiment-labels": "Classify customer feedback as happy, neutral or angry.",
    "survey-statistics": "Significance tests and confidence intervals for survey answers.",
    "time-series": "Forecast monthly sales from history, with seasons and holidays.",
    "chart-style": "Draw charts and graphs in the house style with readable labels.",
    "geocoding": "Turn addresses into coordinates and measure distances between places.",
    "unit-conversion": "Convert between units: miles, kilometres, pounds, kilograms.",
    "currency-rates": "Convert amounts of money at the exchange rate of a given day.",
    "tax-rules": "VAT rates and reporting duties by country.",
    "contract-clauses": "Find risky clauses in a contract and suggest other wording.",
    "privacy-redaction": "Remove names, phone numbers and other personal data from a text.",
    "password-policy": "What passwords and secrets must look like, and how they are rotated.",
    "kubernetes-deploy": "Deploy a service to the Kubernetes cluster and watch the rollout.",
    "log-analysis": "Search server logs for errors and group them by cause.",
    "api-client": "Call the internal HTTP API: authentication, paging, rate limits.",
    "unit-tests": "Write pytest tests for Python code, with fixtures and parameters.",
    "regex-help": "Write and explain regular expressions.",
}
_WHEN = {
    "invoice-check": "A bill from a vendor has arrived and somebody has to approve it.",
    "ocr-scans": "The file is a picture of a page and has no text in it.",
    "incident-report": "Something went down in production and the team wants to learn from it.",
    "privacy-redaction": "Data is about to be shared with people outside.",
}
_DOING = {
    "archive": "Archive", "compare": "Compare", "export": "Export", "import": "Import",
    "audit": "Audit", "label": "Label", "merge": "Merge", "monitor": "Monitor",
    "publish": "Publish", "schedule": "Schedule",
}  # fmt: skip
_THINGS = [
    "orders", "customers", "tickets", "payrolls", "shipments", "contacts", "products",
    "campaigns", "warehouses", "vacancies", "leases", "vehicles", "courses", "patients",
    "recipes", "sensors", "newsletters", "playlists", "donations", "permits", "articles",
    "tournaments", "itineraries", "blueprints", "dashboards", "workshops",
]  # fmt: skip


def library() -> list[Card]:
    """The same three hundred cards every time, in no order that helps."""
    cards = [
        Card(
            id=name,
            name=name,
            source="project",
            description=text,
            when_to_use=_WHEN.get(name, ""),
        )
        for name, text in _WRITTEN.items()
    ]
    for (slug, verb), thing in itertools.product(_DOING.items(), _THINGS):
        cards.append(
            Card(
                id=f"{slug}-{thing}",
                name=f"{slug}-{thing}",
                source="user",
                description=f"{verb} {thing} of the company and report what was done.",
                when_to_use=f"Somebody asks to {slug} {thing}.",
            )
        )
    return sorted(cards, key=lambda card: card.id[::-1])

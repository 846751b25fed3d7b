"""Which invoices are overdue? A program as a model would write it, over the text `books`."""

import csv
import datetime
import io

today = datetime.date(2026, 3, 31)
rows = csv.DictReader(io.StringIO(books[:]))
overdue = [
    (row["invoice"], (today - datetime.date.fromisoformat(row["due"])).days, row["amount"])
    for row in rows
    if not row["paid"] and datetime.date.fromisoformat(row["due"]) < today
]
for invoice, days, amount in sorted(overdue, key=lambda each: -each[1]):
    print(f"{invoice}  {days:>3} days late  {float(amount):>9.2f}")
f"{len(overdue)} invoices are overdue, {sum(float(a) for _, _, a in overdue):,.2f} in all"

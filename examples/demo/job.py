"""Reads orders as CSV from stdin and prints a summary as JSON to stdout."""

import csv
import json
import socket
import sys
from collections import defaultdict
from decimal import Decimal


def network() -> str:
    """Says whether this code could reach another machine: an address in a network that is for documentation."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
    except OSError:
        return "unreachable"
    return "reachable"


def main() -> None:
    revenue = defaultdict(Decimal)
    orders = refunds = 0
    for row in csv.DictReader(sys.stdin):
        amount = int(row["quantity"]) * Decimal(row["unit_price"])
        orders += 1
        refunds += amount < 0
        revenue[row["region"]] += amount
    ranked = sorted(revenue.items(), key=lambda item: -item[1])
    json.dump(
        {
            "orders": orders,
            "refunds": refunds,
            "revenue": f"{sum(revenue.values()):.2f}",
            "best_region": ranked[0][0],
            "by_region": {region: f"{amount:.2f}" for region, amount in ranked},
            "network": network(),
        },
        sys.stdout,
    )


main()

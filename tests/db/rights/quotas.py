"""Quotas as an administrator sets them."""


def allow(site, role="'alice'", **limits):
    named = "".join(f", {name} => {value}" for name, value in limits.items())
    site.execute(f"SELECT tensile_set_quota({role}{named})", role="carol")

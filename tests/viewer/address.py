"""The address of a page as the page itself has it now."""


def address(page):
    """`page.url` is what playwright was last told: after a click it is sometimes the address from before."""
    return page.evaluate("location.href")

"""What calls to paid models cost, and the ledger that keeps them within budgets. Ray-free.

===============  ===================================================================================
module           what it does
===============  ===================================================================================
``usage``        token counts as providers report them; unknown is unknown
``prices``       tokens -> cost (Learning to Ask, Eq. 4), exactly
``summary``      many calls together, with and without a price
``limits``       the budgets
``records``      the lines of the ledger's file
``append_file``  an append-only file with one writer, which outlives its process
``book``         what the records add up to (pure)
``ledger``       reserve before, settle after
``reconcile``    the ledger against the advisor's own log
===============  ===================================================================================
"""

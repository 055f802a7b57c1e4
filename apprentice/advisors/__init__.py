"""The metered advisor of Learning to Ask: a black box that sees the query alone.

Ray-free; ``serve/advisor.py`` deploys it.

==============  ====================================================================================
module          what it does
==============  ====================================================================================
``types``       what an attempt is asked and what comes back; the backend protocol
``prompt``      what an advisor is shown; token counts without a tokenizer
``expression``  arithmetic in text: found, parsed, evaluated
``arithmetic``  an advisor without a model
``backends``    OpenAI-compatible endpoints, our own engine, recorded answers
``thinking``    what the reasoner gets of unfinished reasoning (section 7.3)
``judge``       the completeness gate G by a model; the query types of appendix F.5
``rule_judge``  G by a rule
``metered``     a call through the ledger: reserve, send, settle; one call is paid for once
``service``     advisor, judge and ledger together
==============  ====================================================================================
"""

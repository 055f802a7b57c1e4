"""Episode protocols, sans-I/O.

* :mod:`~apprentice.episodes.actions` - what an episode asks for and what it is told;
* :mod:`~apprentice.episodes.prompts`, :mod:`~apprentice.episodes.tools` - Tables 7 and 8;
* :mod:`~apprentice.episodes.parser` - tool calls in a turn; :mod:`~apprentice.episodes.calls` - their rules;
* :mod:`~apprentice.episodes.collaborative`, :mod:`~apprentice.episodes.internalized`,
  :mod:`~apprentice.episodes.single_turn` - the episodes; :mod:`~apprentice.episodes.core` - what they share;
* :mod:`~apprentice.episodes.responses`, :mod:`~apprentice.episodes.expert_code`,
  :mod:`~apprentice.episodes.stream` - tool responses: written, searched for code, read in a stream;
* :mod:`~apprentice.episodes.factory` - a mode becomes an episode.

Nothing is imported here: the configuration and the actors need :mod:`~apprentice.episodes.actions` alone.
"""

"""Texts of /proc, cgroup and PSI files turned into frozen records.

Pure parsers: whoever has a clock or a descriptor reads, and hands the text in. A text that is not what
its kernel documentation says gives ``None`` (for a record) or ``None`` in a field, never a guess and
never an exception, because these parsers run inside other people's training processes.
"""

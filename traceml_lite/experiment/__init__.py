"""Many passes: a pure plan, one condition in one fresh process, order, timeouts, resume."""

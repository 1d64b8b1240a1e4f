"""The only code that runs inside the training process. It observes; it never changes what it observes."""

"""specdec inside of other systems. A folder each; nothing else imports them."""

"""rtnetlink: a socket, the messages, and links, addresses and routes as values and verbs."""

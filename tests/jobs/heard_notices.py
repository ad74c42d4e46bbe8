"""What the server tells a session while a statement runs."""


def heard_by(connection):
    """Return a list to which the texts of the connection's NOTICEs come."""
    heard = []
    connection.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    return heard

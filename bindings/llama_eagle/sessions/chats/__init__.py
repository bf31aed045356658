"""Messages of chats, in the form that each chat template requires."""

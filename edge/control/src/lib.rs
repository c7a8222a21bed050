//! The service's words on the wire: what is asked of it and what it answers, as JSON, and a client.

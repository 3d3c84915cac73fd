"""What a server meets outside: other servers, sources of video, a balancer in front, and requests that kill stubs."""

"""How clients learn and how their updates are averaged."""

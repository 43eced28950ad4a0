"""How bytes get from one party to another: gRPC under mutual TLS, certificates, addresses."""

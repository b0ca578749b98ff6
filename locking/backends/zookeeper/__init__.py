"""The lock on a ZooKeeper ensemble."""

from locking.backends.zookeeper.backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]

"""What the scripts of this folder share.

May use: Python's standard library, the sluice binary, iproute2, ethtool. Never does: change a NIC's settings.
"""

//! What a mirror does about loss: datagrams that came early are held back, holes are asked for.

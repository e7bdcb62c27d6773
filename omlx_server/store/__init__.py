"""Where payloads are kept. What a payload is, is none of this ring's business."""

"""Components drawn by our own JavaScript, shipped as package files and sent inline: no request leaves the machine."""

// A beat leaves as it came; at most DEPTH are inside.
stream_laws #(.WIDTH(WIDTH), .SLOTS(DEPTH)) u_laws (.*);

// A beat leaves as it came; at most two are inside.
stream_laws #(.WIDTH(WIDTH), .SLOTS(2)) u_laws (.*);

// The place of the largest element; of equal ones, the first.
logic [OUT_WIDTH-1:0] expected;
logic signed [15:0] element, best;

always_comb begin
  expected = '0;
  best     = 16'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0[IN_WIDTH-1:0]}));
  for (int i = 1; i < IN_LANES; i++) begin
    element = 16'($signed({IN_SIGNED && data_in_0[i*IN_WIDTH+IN_WIDTH-1],
                           data_in_0[i*IN_WIDTH+:IN_WIDTH]}));
    if (element > best) begin
      best     = element;
      expected = OUT_WIDTH'(i);
    end
  end
end

stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (.*);

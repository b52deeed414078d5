// Every branch gives every beat. A branch waits for the slowest: it is fed in a cycle in which all
// sinks are ready.
logic [3*BRANCHES-1:0] each;
wire logic is_fed = data_in_0_valid && &data_out_0_ready;

for (genvar branch = 0; branch < BRANCHES; branch++) begin : g_branch
  logic [WIDTH-1:0] head;
  stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(2)) u_laws (
      .*, .due(head), .data(data_out_0[branch*WIDTH+:WIDTH]), .valid(data_out_0_valid[branch]),
      .ready(data_out_0_ready[branch]), .broken(each[branch*3+:3])
  );
end

always_comb begin
  broken = '0;
  for (int branch = 0; branch < BRANCHES; branch++) broken |= each[branch*3+:3];
end

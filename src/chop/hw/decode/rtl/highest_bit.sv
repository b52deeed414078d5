// Place of the highest bit that is 1, by halves; 0 for 0.
// Latency 6 cycles, throughput 1 number per cycle. It never stalls.
`default_nettype none

module highest_bit #(
    parameter int WIDTH = 62  // bits of a number, 1 to 64
) (
    input  wire logic             clk,
    input  wire logic [WIDTH-1:0] data_in,
    output      logic [      5:0] place
);

  logic [63:0] rests[7];
  logic [5:0] places[7];

  assign rests[0]  = 64'(data_in);
  assign places[0] = '0;
  assign place     = places[6];

  for (genvar stage = 0; stage < 6; stage++) begin : g_stage
    localparam int HALF = 32 >> stage;
    logic is_high;
    logic [63:0] rest_q;
    logic [5:0] place_q;
    assign is_high         = (rests[stage] >> HALF) != '0;
    assign rests[stage+1]  = rest_q;
    assign places[stage+1] = place_q;
    always_ff @(posedge clk) begin
      rest_q  <= is_high ? rests[stage] >> HALF : rests[stage];
      place_q <= places[stage] | (is_high ? 6'(HALF) : 6'd0);
    end
  end

  wire logic unused_ok = &{1'b0, rests[6]};

endmodule

`default_nettype wire

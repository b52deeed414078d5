// `fixed_dot_product`: exact sums of products, and the tag beside them, through a pipeline that is
// held at any time.
`default_nettype none

module prove_fixed_dot_product #(
    parameter int LANES = 2,
    parameter int OUTPUTS = 2,
    parameter int X_WIDTH = 2,
    parameter bit X_SIGNED = 1'b1,
    parameter int W_WIDTH = 2,
    parameter bit W_SIGNED = 1'b1,
    parameter bit IS_PACKED = 1'b0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic enable,
    input  wire logic tag_in,
    input  wire logic [LANES*X_WIDTH-1:0] data_in_0,
    input  wire logic [OUTPUTS*LANES*W_WIDTH-1:0] weight,
    output      logic [2:0] broken
);

  localparam int OPERANDS = LANES * (X_WIDTH + OUTPUTS * W_WIDTH);
  localparam int SUM = X_WIDTH + W_WIDTH + $clog2(LANES) + (X_SIGNED ? 0 : 1) + (W_SIGNED ? 0 : 1);
  logic [OUTPUTS*SUM-1:0] data_out_0, due;
  logic [OPERANDS-1:0] head;
  logic tag_out;

  fixed_dot_product #(
      .DATA_IN_0_PRECISION_0      (X_WIDTH),
      .DATA_IN_0_IS_SIGNED        (X_SIGNED),
      .WEIGHT_PRECISION_0         (W_WIDTH),
      .WEIGHT_IS_SIGNED           (W_SIGNED),
      .IS_PACKED                  (IS_PACKED),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES),
      .OUTPUTS                    (OUTPUTS)
  ) dut (
      .*
  );

  for (genvar out = 0; out < OUTPUTS; out++) begin : g_out
    logic signed [23:0] sum, x, w;
    logic [X_WIDTH-1:0] x_code;
    logic [W_WIDTH-1:0] w_code;
    always_comb begin
      sum = '0;
      for (int lane = 0; lane < LANES; lane++) begin
        x_code = head[lane*X_WIDTH+:X_WIDTH];
        w_code = head[LANES*X_WIDTH+(out*LANES+lane)*W_WIDTH+:W_WIDTH];
        x = X_SIGNED ? 24'($signed(x_code)) : $signed(24'(x_code));
        w = W_SIGNED ? 24'($signed(w_code)) : $signed(24'(w_code));
        sum = sum + x * w;
      end
    end
    assign due[out*SUM+:SUM] = SUM'(sum);
  end

  stream_laws #(.BEAT(OUTPUTS * SUM), .WIDTH(OPERANDS), .SLOTS(10), .LATENCY(10), .GAP(11)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (tag_in),
      .is_moving(enable),
      .push     (tag_in && enable),
      .expected ({weight, data_in_0}),
      .head     (head),
      .due      (due),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (tag_out),
      .ready    (enable),
      .broken   (broken)
  );

endmodule

`default_nettype wire

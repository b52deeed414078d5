// Control and status of a design over AXI4-Lite, in words of 32 bits:
//
//   0x00  read        0x4553414d, "MASE" in bytes
//   0x04  read, write bit 0: run, 1 after reset; at 0 no input is taken. Writing 1 to bit 1 clears
//                     errors and counters, and it reads as 0.
//   0x08  read        bit 0: busy, a tensor is inside; bit 1: an input had TLAST in the wrong place;
//                     bit 2: an input had a byte that was not kept
//   0x0c  read        tensors whose first transfer was taken since reset or clear
//   0x10  read        tensors that have left
//   0x14  read        cycles in which the design was busy, low word; keeps the high word for 0x18
//   0x18  read        high word of the cycles, as it was when the low word was read
//
// Other addresses, and writes to words that are only read, are answered with SLVERR. A write is done
// when address and data are there, in any order; one write and one read are open at a time.
`default_nettype none

module axi_lite_registers #(
    parameter int INPUTS = 1  // streams into the design
) (
    input  wire logic        aclk,
    input  wire logic        aresetn,
    input  wire logic [ 7:0] s_axil_awaddr,
    input  wire logic [ 2:0] s_axil_awprot,
    input  wire logic        s_axil_awvalid,
    output      logic        s_axil_awready,
    input  wire logic [31:0] s_axil_wdata,
    input  wire logic [ 3:0] s_axil_wstrb,
    input  wire logic        s_axil_wvalid,
    output      logic        s_axil_wready,
    output      logic [ 1:0] s_axil_bresp,
    output      logic        s_axil_bvalid,
    input  wire logic        s_axil_bready,
    input  wire logic [ 7:0] s_axil_araddr,
    input  wire logic [ 2:0] s_axil_arprot,
    input  wire logic        s_axil_arvalid,
    output      logic        s_axil_arready,
    output      logic [31:0] s_axil_rdata,
    output      logic [ 1:0] s_axil_rresp,
    output      logic        s_axil_rvalid,
    input  wire logic        s_axil_rready,
    input  wire logic        starts,      // a tensor enters
    input  wire logic        ends,        // a tensor has left
    input  wire logic [INPUTS-1:0] last_errors,
    input  wire logic [INPUTS-1:0] keep_errors,
    output      logic        run,
    output      logic        clear,
    output      logic        rst          // reset of the design, active high
);

  localparam logic [31:0] NAME = 32'h4553414d;
  localparam logic [1:0] OKAY = 2'b00, SLVERR = 2'b10;
  localparam logic [5:0] CONTROL = 6'd1, WORDS = 6'd7;

  // -- writes --------------------------------------------------------------------------------

  logic [5:0] address_q;
  logic has_address_q, has_data_q, is_run_q, is_clear_q, is_strobed_q;
  logic is_write, is_control;

  assign s_axil_awready = !has_address_q;
  assign s_axil_wready  = !has_data_q;
  assign is_write       = has_address_q && has_data_q && (!s_axil_bvalid || s_axil_bready);
  assign is_control     = is_write && address_q == CONTROL;
  assign rst            = !aresetn;
  assign clear          = is_control && is_strobed_q && is_clear_q;

  always_ff @(posedge aclk) begin
    if (s_axil_awvalid && s_axil_awready) begin
      address_q     <= s_axil_awaddr[7:2];
      has_address_q <= 1'b1;
    end
    if (s_axil_wvalid && s_axil_wready) begin
      {is_clear_q, is_run_q} <= s_axil_wdata[1:0];
      is_strobed_q           <= s_axil_wstrb[0];
      has_data_q             <= 1'b1;
    end
    if (s_axil_bready) s_axil_bvalid <= 1'b0;
    if (is_write) begin
      has_address_q <= 1'b0;
      has_data_q    <= 1'b0;
      s_axil_bvalid <= 1'b1;
      s_axil_bresp  <= address_q == CONTROL ? OKAY : SLVERR;
    end
    if (is_control && is_strobed_q) run <= is_run_q;
    if (!aresetn) begin
      has_address_q <= 1'b0;
      has_data_q    <= 1'b0;
      s_axil_bvalid <= 1'b0;
      run           <= 1'b1;
    end
  end

  // -- counters ------------------------------------------------------------------------------

  logic [31:0] inside_q, entered_q, left_q;
  logic [63:0] cycles_q;
  logic is_busy;

  assign is_busy = inside_q != '0;

  always_ff @(posedge aclk) begin
    inside_q  <= inside_q + 32'(starts) - 32'(ends);
    entered_q <= entered_q + 32'(starts);
    left_q    <= left_q + 32'(ends);
    cycles_q  <= cycles_q + 64'(is_busy);
    if (clear || !aresetn) begin
      entered_q <= '0;
      left_q    <= '0;
      cycles_q  <= '0;
    end
    if (!aresetn) inside_q <= '0;
  end

  // -- reads ---------------------------------------------------------------------------------

  logic [31:0] word, high_q;
  logic [5:0] wanted;
  logic is_read;

  assign wanted         = s_axil_araddr[7:2];
  assign s_axil_arready = !s_axil_rvalid || s_axil_rready;
  assign is_read        = s_axil_arvalid && s_axil_arready;

  always_comb begin
    case (wanted)
      6'd0: word = NAME;
      6'd1: word = {31'b0, run};
      6'd2: word = {29'b0, |keep_errors, |last_errors, is_busy};
      6'd3: word = entered_q;
      6'd4: word = left_q;
      6'd5: word = cycles_q[31:0];
      6'd6: word = high_q;
      default: word = '0;
    endcase
  end

  always_ff @(posedge aclk) begin
    if (s_axil_rready) s_axil_rvalid <= 1'b0;
    if (is_read) begin
      s_axil_rvalid <= 1'b1;
      s_axil_rdata  <= word;
      s_axil_rresp  <= wanted < WORDS ? OKAY : SLVERR;
      if (wanted == 6'd5) high_q <= cycles_q[63:32];
    end
    if (!aresetn) s_axil_rvalid <= 1'b0;
  end

  wire logic unused_ok = &{
    1'b0, s_axil_awprot, s_axil_arprot, s_axil_awaddr[1:0], s_axil_araddr[1:0],
    s_axil_wdata[31:2], s_axil_wstrb[3:1]
  };

endmodule

`default_nettype wire
